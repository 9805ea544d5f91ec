import './app.css'
import './stores/theme.svelte.ts'
import { mount } from 'svelte'
import App from './App.svelte'

mount(App, { target: document.getElementById('app')! })
