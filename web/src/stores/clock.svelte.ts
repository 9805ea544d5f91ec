// Current time for durations, once a second while the page is visible.
class Clock {
  now = $state(Date.now())

  constructor() {
    setInterval(() => {
      if (!document.hidden) this.now = Date.now()
    }, 1000)
  }
}

export const clock = new Clock()
